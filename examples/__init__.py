"""Scripts to copy and edit; the command line runs the same main()."""
