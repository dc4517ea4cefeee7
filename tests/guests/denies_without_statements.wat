;; Lets pass what has statements, and says what is prepared of all else: the length of the request's list of statements is
;; its word 63.
(func $evaluate (param $request i32) (result i32)
  (if (i32.load offset=252 (local.get $request))
    (then (i32.store8 (global.get $decision) (i32.const 0))))
  (global.get $decision))
