"""The API of OpenAI over HTTP: requests, answers, errors, streams."""
