"""The user's planner: schedule, sampler, denoiser, exactly as they run without Muninn."""
