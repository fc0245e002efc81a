"""What the gateway tells of itself: health, counts, costs, times, a line for each request."""
