import json
import sys

from units import speed

unit = getattr(speed, sys.argv[1], None)
print(json.dumps(unit and round(unit(10), 3)))
