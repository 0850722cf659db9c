"""Views of images: one module each, found by `rescnet_dist.model.registry`."""
