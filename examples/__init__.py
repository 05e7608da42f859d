"""Scripts to copy and edit. The command line runs the same main()."""
