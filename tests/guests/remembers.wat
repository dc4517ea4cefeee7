;; Limits rows to how often it was asked, if anybody lets it remember.
(global $asked (mut i64) (i64.const 0))
(func $evaluate (param $request i32) (result i32)
  (global.set $asked (i64.add (global.get $asked) (i64.const 1)))
  (i64.store offset=8 (global.get $obligations) (global.get $asked))
  (global.get $decision))
