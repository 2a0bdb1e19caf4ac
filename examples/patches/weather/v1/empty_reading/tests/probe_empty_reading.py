import json
import sys

from weather.report import temperature

try:
    print(json.dumps(temperature(json.loads(sys.argv[1]))))
except ZeroDivisionError as error:
    print(json.dumps(type(error).__name__))
