"""Read text: files, corpora, masks, columns, and tables of rows."""
