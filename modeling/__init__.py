"""Model code that travels to the Hub with a checkpoint."""
