"""An error that no retry can mend."""
for step in range(10)
    print(step)
