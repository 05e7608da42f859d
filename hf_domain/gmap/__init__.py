"""What G-MAP needs besides its model: inputs and stored states of the memory, and a measure of forgetting."""
