"""HalfCheetah: run as fast as possible; data of two runners of middling skill."""
