"""Everything to try, teach and measure with, which no serving process needs: nothing outside this folder imports it."""
