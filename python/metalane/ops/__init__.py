"""Operators, one module a family."""
