;; Never gets as far as being asked.
(func $start (loop $again (br $again)))
(start $start)
