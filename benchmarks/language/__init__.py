"""What a bounded KV cache costs a small real language model: teacher-forced likelihood with the plugin's own policies."""
