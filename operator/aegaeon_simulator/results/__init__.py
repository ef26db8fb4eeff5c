"""Results of a run: requests with the times of their tokens, the use of each device, curves of attainment over load."""
