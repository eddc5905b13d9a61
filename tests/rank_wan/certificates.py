"""Real certificates, by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(
    place: Path, name: str, host: str = "DNS:localhost", authority: str = "ours", days: int = 2
) -> dict[str, str]:
    """Its files, and that of the authority that all trust, ``ours``. ``host``: whose it is; ``days`` below 0: it has expired."""

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True, cwd=place)

    for each in {"ours", authority}:
        if not (place / f"{each}.pem").exists():
            openssl(
                f"req -x509 -newkey rsa:2048 -nodes -keyout {each}.key -out {each}.pem -days 2 -subj /CN={each}"
            )
    (place / f"{name}.san").write_text(f"subjectAltName={host}\n")
    openssl(f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}")
    openssl(
        f"x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -out {name}.pem"
        f" -days {days} -extfile {name}.san"
    )
    files = {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": "ours.pem"}
    return {what: str(place / file) for what, file in files.items()}
