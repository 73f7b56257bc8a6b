"""`divevlm batch`: a file of questions about pictures and videos, answered once each, whatever stops on the way."""
