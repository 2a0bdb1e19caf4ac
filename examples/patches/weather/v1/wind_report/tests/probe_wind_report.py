import json

from weather.report import report

print(json.dumps(report({"place": "Harbour", "temperature": [9.0], "wind": [8.0, 12.5, 10.0]}).splitlines()))
