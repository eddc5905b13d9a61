"""The access log of a server: numbers that grow are ports and times."""
import time

for request in range(30):
    time.sleep(0.01)
    print(f'INFO:     127.0.0.1:{40000 + 2 * request} - "GET /v1/models/{request % 3} HTTP/1.1" 200 OK')
