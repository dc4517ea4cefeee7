;; Fills all of its memory again and again: each fill is one instruction, and costs fuel by the byte.
(func $evaluate (param $request i32) (result i32)
  (if (i32.eqz (call $tried (local.get $request)))
    (then
      (drop (memory.grow (i32.sub (i32.const 120) (memory.size))))
      (loop $again
        (memory.fill (i32.const 0) (i32.const 1) (i32.const 7864320))
        (br $again))))
  (global.get $decision))
