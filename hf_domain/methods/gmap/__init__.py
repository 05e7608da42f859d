"""What a G-MAP reads beside its text: the states of its memory."""
