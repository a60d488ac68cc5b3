"""What a callable computes with, and whether it changed."""
