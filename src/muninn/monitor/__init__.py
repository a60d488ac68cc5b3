"""Whether the promise still holds where it is deployed."""
