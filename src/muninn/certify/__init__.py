"""Choosing a program and proving what it promises."""
