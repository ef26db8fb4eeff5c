"""The paper's figures, recomputed: what to run is declared in `catalog`, results are JSON, pages and plots follow."""
