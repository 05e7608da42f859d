"""What RADA needs besides its model: batches with passages, encoded passages, and explanations."""
