// Search shows a part of each page it finds, which a browser refuses to read from a folder.
DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";
