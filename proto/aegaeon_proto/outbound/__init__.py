"""Requests to where tenants say that their models are: whom they may reach, how much may come, how long it may take."""
