"""What the scripts share: arguments, runs, fine-tuning, callbacks of the Trainer."""
