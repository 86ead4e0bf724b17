"""The paper, reproduced: its figures and tables as CSV and plots, and experiments beyond it. See `__main__`."""
