"""The parts that models are put together from. They hold weights; rows, pages and positions come with each call."""
