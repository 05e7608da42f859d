"""Compare methods of domain adaptation on tasks, at equal cost: a plan, its runs, their scores, the report."""
