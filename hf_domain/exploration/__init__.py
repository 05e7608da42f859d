"""What an adapted model does with a text, as plain data, and the page that shows it."""
