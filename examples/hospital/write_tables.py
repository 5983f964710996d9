"""Write a CSV file for each of three hospitals, from real measurements that scikit-learn brings.

python write_tables.py FOLDER
"""

import csv
import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from wards import COLUMNS


def write_tables(folder: Path, hospitals: int = 3) -> None:
    data = load_breast_cancer()
    places = [list(data.feature_names).index(f"mean {name}") for name in COLUMNS]
    for hospital in range(hospitals):
        place = folder / f"site-{hospital}"
        place.mkdir(parents=True, exist_ok=True)
        with (place / "patients.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*COLUMNS, "benign"])
            for row in range(hospital, len(data.target), hospitals):
                table.writerow([*data.data[row, places], data.target[row]])


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
