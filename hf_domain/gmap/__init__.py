"""What G-MAP needs beside its model: inputs and stored states of the memory, and a measure of forgetting."""
