"""Adapt-and-Distill: losses, students, and the four strategies."""
