"""What RADA needs beside its model: batches with passages, encoded passages, and explanations."""
