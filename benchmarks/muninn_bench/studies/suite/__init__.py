"""The paper's first table with our planners: promises, episodes and latencies of every pair."""
