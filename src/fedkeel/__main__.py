"""python -m fedkeel"""

from fedkeel.cli.main import main

main()
