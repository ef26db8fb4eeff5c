"""Eight models with room for two, on this project and what people use instead: same weights, same requests."""
