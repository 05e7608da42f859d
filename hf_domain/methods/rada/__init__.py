"""What a RADA reads beside its text: retrieved passages."""
