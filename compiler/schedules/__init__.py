"""Pipeline schedules as data: tables of actions, made, checked, read and written."""
