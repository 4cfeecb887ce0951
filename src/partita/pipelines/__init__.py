"""Plans of stages, and the search of pipelines that are put together of them."""
