"""Walker2d: walk forward without falling; data of three walkers."""
