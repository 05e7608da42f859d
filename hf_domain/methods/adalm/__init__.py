"""AdaLM: more words in the vocabulary, and small students of an adapted teacher."""
