from divevlm.cli import main

raise SystemExit(main())
