"""Random faults on a real cluster while two tenants stream: nothing may be lost, and everything must recover.

`python -m e2e.chaos --minutes N --seed S`. A seed replays the sequence of faults (schedule.py). Each fault is a context
manager that heals what it did (on_*.py); campaign.py waits after each until the pool is whole and answers again.
"""
