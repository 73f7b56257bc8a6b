"""Pure tensor functions: imports torch, never transformers."""
